"""Asks a server as 3D Slicer's extension does; run in an environment that has MONAI Label's client.

python monailabel_client.py URL FOLDER TOKEN FILE WHO
"""

import json
import sys

from monailabel.client import MONAILabelClient


def main(url, folder, token, file, who):
    def client():
        """A new one for each call, as the extension does: with a token a used one is spoilt."""
        new = MONAILabelClient(url, tmpdir=folder, client_id="slicer")
        new.update_auth(login)
        return new

    login = None
    said = {"enabled": client().auth_enabled()}
    if said["enabled"]:
        login = client().auth_token("anybody", token)
        said["valid"] = client().auth_valid_token()
    info = client().info()
    said |= {"models": list(info["models"]), "labels": info["labels"]}
    found, params = client().infer(who, "", {}, file=file)
    said |= {"file": found, "params": params}
    with open(found, "rb") as one:
        said["first"] = one.read().hex()
    session = client().create_session(file)["session_id"]
    said["session"] = client().get_session(session)
    again, _ = client().infer(who, "", {}, session_id=session)
    with open(again, "rb") as other:
        said["second"] = other.read().hex()
    client().remove_session(session)
    print(json.dumps(said))


main(*sys.argv[1:])
