import pytest

from tests.spark.features.hop_uploads import Uploads


@pytest.fixture
def uploads(spark, tmp_path):
    made = Uploads(spark, tmp_path)
    yield made
    made.store.close()
