"""What launches itself: decisions made from tables, so that a daemon that was down misses nothing.

Each sensor is a pure decision and a thin shell around it, and says why it does nothing. One that sends starts STOPPED; one that
only keeps order starts RUNNING.
"""
