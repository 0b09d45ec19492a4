"""The web console: dead letters for people who would rather look than type.

`pulsar-retry console` serves it; it needs the extra ``console``.
"""
