"""Using what a finished run left behind: its model, its images, its figures.

Here: loading a run, evaluating, predicting, exporting. Not here: tables over many runs and
pictures of them (`report`), options and printing (`cli`). Read `finished` first.
"""
