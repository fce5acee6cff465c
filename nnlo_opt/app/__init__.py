"""The application: runs, the Python API, commands, reports. It imports core and engine."""
