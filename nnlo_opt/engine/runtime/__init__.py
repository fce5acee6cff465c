"""The process of a rank: devices, signals, logs, watchdog."""
