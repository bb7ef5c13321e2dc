from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("tracker", "0012_groups"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="is_moving",
            field=models.BooleanField(
                default=False,
                editable=False,
                help_text="It is about to take other layers: its sessions move away first.",
            ),
        ),
        migrations.AddField(
            model_name="shard",
            name="loaded_start",
            field=models.PositiveIntegerField(
                blank=True,
                editable=False,
                help_text="The first one in its memory, where it is used for fewer.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="shard",
            name="loaded_end",
            field=models.PositiveIntegerField(
                blank=True, editable=False, help_text="The layer after the last one in its memory.", null=True
            ),
        ),
    ]
