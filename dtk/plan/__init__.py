"""What a run will need and do, before it is launched: memory, communication and time of one step."""
