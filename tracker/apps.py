from django.apps import AppConfig


class TrackerConfig(AppConfig):
    name = "tracker"

    def ready(self) -> None:
        from tracker import checks  # noqa: F401  (registers them)
