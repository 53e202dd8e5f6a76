"""Who is told what happens in a run: the screen, the event log. Small files with one hook."""

BY_PLAN = "absent by the experiment's plan"  # why a site is missing that a round does not ask
