"""What runs left in their folders, put into words, tables and pictures.

Reads files and knows nothing of a running federation. Read `files`, then `aggregate` and `curves`;
`pictures` lists the kinds of picture.
"""
