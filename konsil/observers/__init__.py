"""Who is told what happens in a run: the screen, the event log. Small files with one hook."""
