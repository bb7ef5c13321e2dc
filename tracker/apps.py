from django.apps import AppConfig
from django.contrib.admin import apps as admin


class TrackerConfig(AppConfig):
    name = "tracker"
    default = True

    def ready(self) -> None:
        from tracker import checks  # noqa: F401  (registers them)


class SiteConfig(admin.AdminConfig):
    default = False
    default_site = "tracker.site.MeshnetSite"
