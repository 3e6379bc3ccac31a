import signal

import pytest

from bitstep.launch.signals import FILE_VARIABLE, INTERRUPTED, STOPPED, catch_stop


@pytest.mark.parametrize("received", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_asks_to_stop_with_status_75(received):
    with catch_stop() as stop:
        assert not stop()
        signal.raise_signal(received)
        assert stop()
        assert stop.exit == STOPPED == 75


def test_ctrl_c_asks_to_stop_with_status_130():
    with catch_stop() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop()
        assert stop.exit == INTERRUPTED == 130


def test_a_second_ctrl_c_ends_at_once():
    with catch_stop():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_after_sigterm_is_the_first_ctrl_c():
    with catch_stop() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert stop.exit == INTERRUPTED


def test_a_repeated_sigterm_changes_nothing():
    heard = []
    with catch_stop(heard.append) as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop.exit == STOPPED
    assert heard == [signal.SIGTERM]


def test_handlers_are_put_back():
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    with catch_stop():
        assert [signal.getsignal(number) for number in numbers] != before
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_worker_hears_its_launchers_file(tmp_path, monkeypatch):
    file = tmp_path / "stop"
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    with catch_stop() as stop:
        assert not stop()
        file.touch()
        assert stop()
        assert stop.exit == STOPPED


def test_a_launcher_makes_the_file_when_a_signal_comes(tmp_path):
    with catch_stop() as stop:
        stop.pass_to(tmp_path / "stop")
        assert not (tmp_path / "stop").exists()
        signal.raise_signal(signal.SIGUSR1)
        assert (tmp_path / "stop").exists()


def test_a_signal_before_the_workers_start_is_not_lost(tmp_path):
    with catch_stop() as stop:
        signal.raise_signal(signal.SIGTERM)
        stop.pass_to(tmp_path / "stop")
        assert (tmp_path / "stop").exists()
