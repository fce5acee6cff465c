"""Search algorithms and pruners: pure functions of the history that choose the next trial or end one."""
