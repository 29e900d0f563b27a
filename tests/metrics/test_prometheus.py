"""The recorder that Prometheus reads: what it was told comes out under the vocabulary's names and labels."""

import http.client
import threading
from urllib.parse import urlsplit

import pytest

from millpond.errors import UnavailableError
from millpond.metrics import PrometheusRecorder, prometheus_endpoint


@pytest.fixture
def recorder():
    return PrometheusRecorder()


def test_counts_add_up_and_levels_are_the_last_ones(recorder):
    for amount in (2, 3):
        recorder.count("millpond_lookup_requests_total", amount, name="planes", result="hit")
        recorder.gauge("millpond_lookup_cached_records", amount, name="planes")
    assert recorder.text() == (
        "# HELP millpond_lookup_cached_records Keys in the cache.\n"
        "# TYPE millpond_lookup_cached_records gauge\n"
        'millpond_lookup_cached_records{table="planes"} 3\n'
        "# HELP millpond_lookup_requests_total Distinct keys, by result: hit or miss.\n"
        "# TYPE millpond_lookup_requests_total counter\n"
        'millpond_lookup_requests_total{table="planes",result="hit"} 5\n'
    )


def test_the_name_and_the_result_become_the_labels_of_the_metric(recorder):
    recorder.count("millpond_spillable_moves_total", 1, name="spill")
    recorder.count("millpond_state_cache_requests_total", 1, result="miss")
    lines = recorder.text().splitlines()
    assert 'millpond_spillable_moves_total{direction="spill"} 1' in lines
    assert 'millpond_state_cache_requests_total{result="miss"} 1' in lines


def test_the_gauge_of_flip_325_has_a_name_that_follows_the_conventions(recorder):
    recorder.gauge("stateCacheHitRatio", 0.75)
    assert recorder.text().splitlines()[1:] == [
        "# TYPE millpond_state_cache_hit_ratio gauge",
        "millpond_state_cache_hit_ratio 0.75",
    ]


def test_a_metric_of_a_users_own_is_exported_too(recorder):
    recorder.count("shop_reads_total", 1, name="a", result="ok")
    recorder.gauge("shop_bytes", 2, name="b")
    lines = recorder.text().splitlines()
    assert 'shop_reads_total{name="a",result="ok"} 1' in lines
    assert 'shop_bytes{name="b"} 2' in lines


def test_what_is_in_a_name_cannot_break_a_line(recorder):
    recorder.gauge("millpond_lookup_cached_bytes", 1, name='a"b\\c\nd')
    assert recorder.text().splitlines()[-1] == r'millpond_lookup_cached_bytes{table="a\"b\\c\nd"} 1'


def test_no_count_is_lost_between_threads_and_scrapes(recorder):
    def tell():
        for _ in range(2_000):
            recorder.count("millpond_upload_rows_total", 1, name="route")

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        recorder.text()
    assert recorder.text().splitlines()[-1] == 'millpond_upload_rows_total{group_by="route"} 8000'


def get(url, path="/metrics"):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=5)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers["Content-Type"], body


def test_a_scrape_has_the_media_type_of_prometheus_and_another_path_is_not_found(recorder):
    recorder.gauge("millpond_spillable_bytes", 5, name="heap")
    with prometheus_endpoint(recorder) as url:
        assert url.endswith("/metrics")
        status, media_type, body = get(url)
        assert (status, media_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert body.decode() == recorder.text()
        assert get(url, "/else")[0] == 404


def test_a_taken_port_is_an_error_that_names_it(recorder):
    with prometheus_endpoint(recorder) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        with pytest.raises(UnavailableError, match=f"port {port}"), prometheus_endpoint(recorder, port=port):
            pass


def test_an_endpoint_that_was_left_listens_no_more(recorder):
    with prometheus_endpoint(recorder) as url:
        pass
    with pytest.raises(ConnectionRefusedError):
        get(url)
