"""What a run will need, before it is launched: memory, communication and time of one step."""
