"""What makes up the process of one rank: signals, watchdog, devices, log, monitor, timeline."""
