"""How this machine's package clients reach their registries: copied into a userland, because that is not what is tested."""

import os
import re
import shutil
from pathlib import Path

FILES = ["/etc/hosts", "/etc/resolv.conf", "/etc/pip.conf", "/etc/npmrc", "/etc/gitconfig"]
FILES_AT_HOME = [".pip/pip.conf", ".config/pip/pip.conf", ".npmrc", ".cargo/config.toml", ".cargo/config"]
VARIABLES = {
    "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE",
    "RUSTUP_DIST_SERVER", "RUSTUP_UPDATE_ROOT",
    *(f"{kind}_proxy" for kind in ("http", "https", "no", "all")), *(f"{kind}_PROXY" for kind in ("HTTP", "HTTPS", "NO", "ALL")),
}
PREFIXES = ("PIP_", "NPM_CONFIG_", "npm_config_", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTRIES_", "CARGO_SOURCE_")
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
AUTHORITIES = "usr/local/share/ca-certificates/of-the-host"
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\n.*?-----END CERTIFICATE-----\n", re.DOTALL)


def variables(environment=os.environ):
    """The variables of this machine that such clients read."""
    return {name: value for name, value in environment.items() if name in VARIABLES or name.startswith(PREFIXES)}


def copy_files(root):
    """Copies the files that exist here. Paths at home are those of root there."""
    home = Path.home()
    pairs = [(Path(file), root / file.lstrip("/")) for file in FILES]
    pairs += [(home / file, root / "root" / file) for file in FILES_AT_HOME]
    for source, target in pairs:
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            # A dangling link, as of systemd's resolver, is replaced.
            target.unlink(missing_ok=True)
            shutil.copy(source, target)


def copy_authorities(root, bundle=BUNDLE):
    """Copies the certificate authorities that only this machine trusts; `update-ca-certificates` has to run there afterwards.

    One file each: a bundle that is copied whole is lost when a package there updates its own.
    """
    known = certificates(root / BUNDLE.relative_to("/"))
    directory = root / AUTHORITIES
    directory.mkdir(parents=True)
    for number, certificate in enumerate(certificate for certificate in certificates(bundle) if certificate not in known):
        (directory / f"{number:03}.crt").write_text(certificate)


def certificates(bundle):
    """The certificates of a bundle, in order, without comments."""
    return CERTIFICATE.findall(bundle.read_text()) if bundle.is_file() else []
