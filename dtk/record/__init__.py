"""What a run leaves behind: regions, metrics, telemetry, flight recorder, trackers."""
