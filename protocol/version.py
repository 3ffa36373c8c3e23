"""Version of the wire protocol: peers of different versions refuse each other with one clear line."""

PROTOCOL_VERSION = 7
