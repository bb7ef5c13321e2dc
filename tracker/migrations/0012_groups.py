"""Makes the groups viewer, operator and admin. Permissions are made after all migrations else; here before."""

from django.apps import apps as present_apps
from django.contrib.auth.management import create_permissions
from django.db import migrations


def make_groups(apps, schema_editor):
    from tracker import groups

    for label in ("auth", "tracker"):
        create_permissions(present_apps.get_app_config(label), verbosity=0, using=schema_editor.connection.alias)
    groups.make(apps.get_model("auth", "Group").objects, apps.get_model("auth", "Permission").objects)


class Migration(migrations.Migration):
    dependencies = [("tracker", "0011_console"), ("auth", "0012_alter_user_first_name_max_length"), ("contenttypes", "0002_remove_content_type_name")]
    operations = [migrations.RunPython(make_groups, migrations.RunPython.noop)]
