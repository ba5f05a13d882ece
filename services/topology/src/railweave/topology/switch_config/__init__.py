"""The configuration of switches, rendered from the records: what a leaf is to carry, in the words of its system.

intent = intent_of(leaf, attachments)
patch = sonic.patch_of(running, intent, owned)      # or cumulus.commands(intent), linux.commands(intent)
"""

from railweave.topology.switch_config.cumulus import commands as cumulus_commands
from railweave.topology.switch_config.linux import commands as linux_commands
from railweave.topology.switch_config.model import IntentRefused, IntentVlan, SwitchIntent, intent_of
from railweave.topology.switch_config.sonic import ConfigTables, SonicPatch, patch_of, read_tables, tables_of
from railweave.topology.switch_config.sonic_rules import faults

__all__ = [
    "ConfigTables",
    "IntentRefused",
    "IntentVlan",
    "SonicPatch",
    "SwitchIntent",
    "cumulus_commands",
    "faults",
    "intent_of",
    "linux_commands",
    "patch_of",
    "read_tables",
    "tables_of",
]
