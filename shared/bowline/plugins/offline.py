"""The plugins that ``bowline lint`` calls, for a configuration. It starts without the half of them that binds.

Imports no plugin that only binds, nor what binding imports: clients, event loops and metrics.
"""

from importlib import import_module

from bowline.framework.config import Settings
from bowline.framework.interface.plugin import AdmissionPlugin, Plugin
from bowline.plugins.dynamic_resources.admission import DynamicResourcesAdmission
from bowline.plugins.gpu_request import GpuRequest
from bowline.plugins.gpu_sharing.admission import GpuSharingAdmission
from bowline.plugins.runtime_class import RuntimeClass

# Those of the webhook by default, in the order in which they run; a test compares them with the catalog.
DEFAULT: tuple[type[AdmissionPlugin], ...] = (
    GpuRequest,
    GpuSharingAdmission,
    RuntimeClass,
    DynamicResourcesAdmission,
)


def offline_plugins(settings: Settings) -> tuple[Plugin, ...]:
    """Return the enabled plugins in order. Raises ConfigurationError with all errors.

    A configuration that names plugins is resolved as in the cluster, with all plugins.
    """
    if settings.plugins or settings.plugin_order or settings.nv_fractions:
        plugins: tuple[Plugin, ...] = import_module("bowline.plugins.catalog").build_plugins(settings)
        return plugins
    return tuple(plugin(plugin.config_model.model_construct(), settings) for plugin in DEFAULT)
