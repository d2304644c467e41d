"""The ``fedsyn`` command: one file per command.

Here: options, what is printed, exit codes. Not here: anything a notebook could want, too; commands
call the rooms below and have no logic of their own. Read `app` first, then `run`.
"""
