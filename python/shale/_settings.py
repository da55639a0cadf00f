"""URLs and storage options: the store, the key, the version, and which options are secret.

Options are named as in s3fs (`key`, `secret`, `endpoint_url`, ...) or as in the store's client
(`aws_access_key_id`, `google_service_account`, `azure_storage_account_name`, ...). Secrets never leave the
process: a pickle has a name by which the same process, or one forked from it, finds them again; another
process uses the settings of its own environment.
"""

import os
import secrets as random_names

PROTOCOLS = ("shale+s3", "shale+gs", "shale+az", "shale+file", "shale+memory")
# Options are secret if their names, or parts of them, are among these.
SECRET_NAMES = {"key", "secret", "token", "username", "password"}
SECRET_PARTS = ("access_key", "secret", "token", "password", "account_key", "sas", "credential", "private_key", "service_account_key")
# The names of s3fs, and those of the client.
S3FS_NAMES = {
    "key": "aws_access_key_id",
    "username": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "password": "aws_secret_access_key",
    "token": "aws_session_token",
    "endpoint_url": "aws_endpoint",
    "region_name": "aws_region",
}
# Options of s3fs without a meaning here.
S3FS_IGNORED = {"use_ssl", "cache_regions", "requester_pays", "default_block_size", "default_cache_type", "default_fill_cache",
                "version_aware", "max_concurrency", "fixed_upload_size", "s3_additional_kwargs", "session"}

# Secrets of this process, by the name in pickles. Bounded by the number of file systems that a
# program creates.
_VAULT = {}


def is_secret(name):
    """Returns whether an option's value must not be in a pickle."""
    name = name.lower()
    return name in SECRET_NAMES or any(part in name for part in SECRET_PARTS)


def hide(options):
    """Returns (options without secrets, name of the secrets in this process)."""
    secret = {name: value for name, value in options.items() if is_secret(name)}
    public = {name: value for name, value in options.items() if name not in secret}
    inner = public.get("client_kwargs")
    if inner and any(is_secret(name) for name in inner):
        secret["client_kwargs"] = inner
        public["client_kwargs"] = {name: value for name, value in inner.items() if not is_secret(name)}
    if not secret:
        return public, None
    for name, known in _VAULT.items():
        if known == secret:
            return public, name
    name = random_names.token_hex(8)
    _VAULT[name] = secret
    return public, name


def reveal(options, name):
    """Returns the options with the secrets of this name, if this process has them."""
    return {**options, **_VAULT.get(name, {})}


def text(value):
    """Returns an option's value as the client expects it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def client_options(kind, options):
    """Returns ({name: value} for the store's client, profile). Raises ValueError for invalid options."""
    found, profile = {}, None
    for name, value in options.items():
        if value is None or name in S3FS_IGNORED:
            continue
        if name == "profile":
            profile = str(value)
        elif name == "anon":
            if value:
                found["aws_skip_signature" if kind == "s3" else f"{'google' if kind == 'gs' else 'azure'}_skip_signature"] = "true"
        elif name == "client_kwargs":
            inner, inner_profile = client_options(kind, value)
            found.update(inner)
            profile = inner_profile or profile
        elif name == "config_kwargs":
            style = (value.get("s3") or {}).get("addressing_style")
            if style not in (None, "auto", "path", "virtual"):
                raise ValueError(f"addressing_style must be auto, path or virtual, not {style!r}")
            if style in ("path", "virtual"):
                found["aws_virtual_hosted_style_request"] = text(style == "virtual")
        elif name == "verify":
            if value is False:
                found["allow_invalid_certificates"] = "true"
            elif value is not True and value != "":
                found["ca_bundle"] = os.path.abspath(os.fspath(value))
        elif kind == "s3" and name in S3FS_NAMES:
            found[S3FS_NAMES[name]] = text(value)
        elif kind in ("file", "memory"):
            raise ValueError(f"a store of kind {kind} has no option {name}")
        else:
            found[name] = text(value)
    return found, profile


def split_version(path):
    """Returns (path, version or tag): the text after the last @ of the last part, or "" for the newest."""
    head, mark, at = path.rpartition("@")
    if not mark or "/" in at:
        return path, ""
    if not at or not head or head.endswith("/"):
        raise ValueError(f"'{path}' has no key, or no version after its @: the last part of a key must not contain an @")
    return head, at


def strip(path, protocols=PROTOCOLS, kind=""):
    """Returns a path without its protocol and trailing slash. A relative directory is resolved, as in the commands."""
    for protocol in protocols:
        if path.startswith(protocol + "://"):
            path = path[len(protocol) + 3:]
            break
    if kind == "file" and path and not path.startswith("/"):
        return os.path.abspath(path)
    return path.rstrip("/") or ("/" if path.startswith("/") else "")


def store_and_key(kind, path):
    """Returns (bucket, key) of a path without protocol and version. For a local directory, the key is its whole path."""
    if kind in ("file", "memory"):
        return "", path.strip("/")
    bucket, _, key = path.lstrip("/").partition("/")
    if not bucket:
        raise ValueError(f"'{path}' has no bucket")
    return bucket, key
