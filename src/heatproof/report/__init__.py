"""Result tables, figures and HTML pages. They read stored results and run no network."""
