"""Python interface.

Modules:

    optimize         optimize, SearchResult: a search in the caller's process, or on the ranks of a communicator
    study            Study: a search whose trials the caller runs
    run              Run, load_run: an earlier run, with its trials, tables, figures, models
    arguments        the options of a search, with their types
    steering         a search under way, as its callbacks see and steer it
    words            names of other packages, sentences with arguments of Python
"""
