from django.apps import AppConfig
from django.contrib.admin import apps as admin
from django.db.models.signals import post_migrate


class TrackerConfig(AppConfig):
    name = "tracker"
    default = True

    def ready(self) -> None:
        from tracker import beginnings, checks  # noqa: F401  (registers them)

        post_migrate.connect(beginnings.make_missing, sender=self)


class SiteConfig(admin.AdminConfig):
    default = False
    default_site = "tracker.site.MeshnetSite"
