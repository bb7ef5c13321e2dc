from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("tracker", "0013_placement"),
    ]

    operations = [
        migrations.AddField(
            model_name="chatsession",
            name="error_details",
            field=models.TextField(
                blank=True, default="", help_text="In the words of the node or the site that noticed."
            ),
        ),
    ]
