"""From the `nats` section to what the bus takes."""

from __future__ import annotations

import ssl

from railweave.runtime.connection import BusSettings
from railweave.runtime.settings import Settings, SettingsError, TlsSettings


def bus_settings(settings: Settings) -> BusSettings:
    """The bus settings of a process.

    Raises:
        SettingsError: certificates that cannot be read.
    """
    nats, own = settings.nats, settings.service
    needs_tls = nats.tls.enabled or any(server.startswith(("tls:", "wss:")) for server in nats.servers)
    return BusSettings(
        servers=nats.servers,
        name=f"{own.name}/{own.instance}",
        user=nats.user,
        password=nats.password.get_secret_value() if nats.password else None,
        token=nats.token.get_secret_value() if nats.token else None,
        credentials_file=nats.credentials_file,
        nkey_seed_file=nats.nkey_seed_file,
        tls=tls_context(nats.tls) if needs_tls else None,
        inbox_prefix=nats.inbox_prefix or "_INBOX",
        ping_interval_s=nats.ping_interval_s,
    )


def tls_context(tls: TlsSettings) -> ssl.SSLContext:
    """The client context of a TLS section.

    Raises:
        SettingsError: a file that is missing or no certificate.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file is not None and tls.key_file is not None:
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError([f"nats.tls: cannot read {tls.ca_file or tls.cert_file}: {error}"]) from error
    return context
