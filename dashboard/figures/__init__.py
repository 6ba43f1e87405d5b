"""Pure functions from frames and report.json to plotly figures; no function here reads a file or knows a page.

A figure carries no template: whoever shows it puts in the one of the mode (`dashboard.theme.template`).
"""
