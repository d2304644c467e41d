"""The page that people open: one HTML file with all of its data, styles and scripts in it.

Read `content` (what it says), then `render` (how it becomes HTML). `charts` makes Plotly's figures,
`compared` the table of means and tests, `samples_shown` what needs images or a model.
"""
