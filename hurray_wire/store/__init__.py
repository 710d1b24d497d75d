"""The only code that opens anything: ``source`` gives bytes, ``reader`` and ``writer`` files, ``stream`` streams."""
