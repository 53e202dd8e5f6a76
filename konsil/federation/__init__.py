"""The protocol between a server and its sites: plan, messages, rounds, records, states."""
