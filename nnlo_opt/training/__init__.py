"""Rules of one training: options, schedules, stopping, history."""
