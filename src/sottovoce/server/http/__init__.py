"""The web server: routes, what is around every request, and an end that lets everybody finish."""
