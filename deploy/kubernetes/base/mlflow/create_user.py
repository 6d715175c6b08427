"""Make the MLflow user that raygpu's runs belong to, or give it the password that the Secret has now."""

import os
import time
import urllib.error
import urllib.request

from mlflow.exceptions import MlflowException
from mlflow.server.auth.client import AuthServiceClient

server, name, password = (os.environ[key] for key in ("MLFLOW_TRACKING_URI", "RAYGPU_USER", "RAYGPU_PASSWORD"))
deadline = time.monotonic() + 600
while True:
    try:
        urllib.request.urlopen(f"{server}/health", timeout=5)
        break
    except (urllib.error.URLError, OSError):
        if time.monotonic() > deadline:
            raise
        time.sleep(2)
client = AuthServiceClient(server)  # as the administrator, by MLFLOW_TRACKING_USERNAME and _PASSWORD
try:
    client.create_user(name, password)
    print(f"made the user {name}")
except MlflowException as error:
    if error.error_code != "RESOURCE_ALREADY_EXISTS":
        raise
    client.update_user_password(name, password)
    print(f"the user {name} has the password of the Secret")
