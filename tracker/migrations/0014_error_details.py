from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tracker', '0013_placement'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='auditentry',
            options={'ordering': ['-at', '-pk'], 'verbose_name': "operator's action", 'verbose_name_plural': 'audit log entries'},
        ),
        migrations.AddField(
            model_name='chatsession',
            name='error_details',
            field=models.TextField(blank=True, default='', help_text='In the words of the node or the site that noticed.'),
        ),
        migrations.AddField(
            model_name='chatsession',
            name='last_token',
            field=models.DateTimeField(editable=False, help_text='When the last one had come, by the news of it while it runs.', null=True),
        ),
        migrations.AlterField(
            model_name='node',
            name='cleared',
            field=models.DateTimeField(blank=True, help_text="When an operator last had it used again: what was said of it before that doesn't count.", null=True),
        ),
        migrations.AlterField(
            model_name='node',
            name='duty',
            field=models.CharField(choices=[('works', 'works: takes sessions'), ('paused', 'paused: new sessions go elsewhere, its own finish there'), ('draining', 'draining: new sessions go elsewhere, its own move away')], default='works', help_text='What the operator has it do.', max_length=8),
        ),
    ]
