"""The web console: shows and redrives dead letters in a browser.

`pulsar-retry console` serves it; it needs the extra ``console``.
"""
