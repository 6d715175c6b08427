"""The report of a run, one file for a browser: sections of words, tables and Plotly's figures, and pictures of them."""
