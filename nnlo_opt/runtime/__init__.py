"""Process of one rank: signals, watchdog, devices, log, monitor, timeline."""
