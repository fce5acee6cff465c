"""The application: runs, the Python API, the commands on runs, reports. It imports core and engine."""
