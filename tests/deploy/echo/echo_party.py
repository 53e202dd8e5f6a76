"""A party that gives back what it gets, or does what the topic says."""

import json
import os
import time


class SiteClient:
    @classmethod
    def from_file(cls, path, say=None):
        party = cls()
        party.site = json.loads(path.read_text())["site"]
        return party

    def answer(self, topic, payload):
        name, _, seconds = topic.partition("-")
        if name == "wait" and self.site == "south":
            time.sleep(float(seconds))
        if name == "die" and self.site == "south":
            os._exit(7)
        return payload

    def too_large(self, topic, size):
        return b""
