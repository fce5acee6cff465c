"""Process of a rank: devices, signals, logs, watchdog."""
