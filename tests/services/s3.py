"""Object storage on loopback: moto's server, which answers as S3 does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

BUCKET = "raygpu"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "key-of-the-tests",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Of everybody who uses it, beside its address."""


@contextmanager
def s3(
    *buckets: str, key: str = ENVIRONMENT["AWS_ACCESS_KEY_ID"], secret: str = ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]
) -> Iterator[dict[str, str]]:
    """A server with empty buckets; yields the variables by which it is found."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        address = f"http://{host}:{port}"
        variables = {**ENVIRONMENT, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        client = boto3.client(
            "s3",
            endpoint_url=address,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            region_name=ENVIRONMENT["AWS_DEFAULT_REGION"],
        )
        for bucket in buckets or (BUCKET,):
            client.create_bucket(Bucket=bucket)
        yield {**variables, "AWS_ENDPOINT_URL": address}
    finally:
        server.stop()
