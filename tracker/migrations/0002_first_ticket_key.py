"""Makes the key that signs tickets, unless TICKET_KEYS brings its own."""

from django.conf import settings
from django.db import migrations


def make_key(apps, schema_editor):
    from tracker.tickets import SigningKey

    TicketKey = apps.get_model("tracker", "TicketKey")
    if settings.TICKET_KEYS or TicketKey.objects.exists():
        return
    key = SigningKey.generate()
    TicketKey.objects.create(kid=key.kid, private=key.text)


class Migration(migrations.Migration):
    dependencies = [("tracker", "0001_initial")]
    operations = [migrations.RunPython(make_key, migrations.RunPython.noop)]
