"""The model of sessions: a name leads to a generation and variables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tests.waiting import wait_until

from .base import Part, step
from .host import READY_SECONDS

NAMES = st.sampled_from(["s", "t", "u"])
VARIABLES = st.sampled_from(["x", "y"])
ENV_NAMES, ENV_VALUES = st.sampled_from(["MODEL_A", "MODEL_B"]), st.sampled_from(["a", "b", ""])
SEEN = "sorted(item for item in os.environ.items() if item[0].startswith('MODEL_'))"
ENDS = ["pass", "1 / 0", "raise SystemExit(2)", "raise KeyboardInterrupt"]


@dataclass
class Session:
    """A session of the model."""

    generation: int = 1
    variables: dict[str, int] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    """Variables in os.environ that cells have set."""
    is_dead: bool = False
    """The interpreter died: the next cell runs in the next generation."""
    has_state: bool = False
    """A cell ran in this generation, so there is something to lose."""
    journaled_generation: int = 0
    """The last generation that had state: all that a later daemon knows."""
    has_untold_loss: bool = False
    """The next cell says that state was lost."""
    is_listed: bool = True
    """False after a death of the daemon, until the name is used again."""


class Sessions(Part):
    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[str, Session] = {}

    def session_url(self, name: str, verb: str = "") -> str:
        return f"/v1/sessions/{self.prefix}-{name}{verb}"

    def cell(self, name: str, code: str, **request: Any) -> dict[str, Any]:
        """Run a cell of a session that exists or is made; check what the reply says of losses."""
        body = self.host.json(
            "POST",
            self.session_url(name, "/execute"),
            200,
            params={"create": "true"},
            json={"code": code, **request},
        )
        session = self.sessions.setdefault(name, Session())
        session.generation += session.is_dead
        assert body["generation"] == session.generation, body
        assert body["state_lost"] == session.has_untold_loss, body
        session.is_dead = session.has_untold_loss = False
        session.is_listed = session.has_state = True
        session.journaled_generation = session.generation
        return dict(body)

    def begin_long_cell(self, name: str) -> dict[str, Any]:
        """A cell that runs until something ends the cell."""
        self.cell(name, "1")
        body = self.host.json(
            "POST",
            self.session_url(name, "/execute"),
            202,
            json={"code": "import time\ntime.sleep(4000.25)", "detach": True},
        )
        while self.host.json("GET", self.session_url(name), 200)["state"] != "BUSY":
            assert self.host.json("GET", f"/v1/executions/{body['id']}", 200)["state"] != "EXITED"
        return dict(body)

    def end_of(self, cell: dict[str, Any]) -> dict[str, Any]:
        """Wait for the end of a detached cell, and delete the record."""
        url = f"/v1/executions/{cell['id']}"
        done = self.host.json("GET", url, 200, params={"wait_seconds": "25"})
        self.host.json("DELETE", url, 204)
        return dict(done)

    def kill_worker(self, name: str) -> None:
        self.host.kill(self.host.json("GET", self.session_url(name), 200)["pid"])

    def lose(self, session: Session) -> None:
        session.has_untold_loss |= session.has_state
        session.has_state = False
        session.variables, session.environ = {}, {}

    @step(name=NAMES, variable=VARIABLES, value=st.integers(-9, 9))
    def set_variable(self, name: str, variable: str, value: int) -> None:
        assert self.cell(name, f"{variable} = {value}")["status"] == "success"
        self.sessions[name].variables[variable] = value

    @step(name=NAMES)
    def read_variables(self, name: str) -> None:
        body = self.cell(name, "[(n, globals()[n]) for n in ('x', 'y') if n in globals()]")
        expected = sorted(self.sessions[name].variables.items())
        assert body["result"]["data"]["text/plain"] == str(expected), body

    @step(name=NAMES, variable=ENV_NAMES, value=ENV_VALUES)
    def set_in_the_environment(self, name: str, variable: str, value: str) -> None:
        body = self.cell(name, f"import os; os.environ[{variable!r}] = {value!r}")
        assert body["status"] == "success", body
        self.sessions[name].environ[variable] = value

    @step(name=NAMES, env=st.dictionaries(ENV_NAMES, ENV_VALUES), ends=st.sampled_from(ENDS))
    def run_with_an_environment(self, name: str, env: dict[str, str], ends: str) -> None:
        """A cell and its child see the variables, and change a variable; the next cell sees the
        values before."""
        self.cell(name, "1")
        code = f"import os\nprint({SEEN})\n!echo $MODEL_A-$MODEL_B\n"
        body = self.cell(
            name, f"{code}for name in {sorted(env)}: os.environ[name] += 'x'\n{ends}", env=env
        )
        seen = {**self.sessions[name].environ, **env}
        child = "-".join(seen.get(variable, "") for variable in ("MODEL_A", "MODEL_B"))
        assert body["stdout"] == f"{sorted(seen.items())}\n{child}\n", body
        body = self.cell(name, f"print({SEEN})")
        assert body["stdout"] == f"{sorted(self.sessions[name].environ.items())}\n", body

    @step(name=NAMES)
    def raise_an_error(self, name: str) -> None:
        body = self.cell(name, "1 / 0")
        assert (body["status"], body["exit_code"]) == ("error", 1)
        assert body["error"]["name"] == "ZeroDivisionError"

    @step(name=NAMES, key=st.integers(0, 1 << 64))
    def repeat_a_cell(self, name: str, key: object) -> None:
        """Twice the same request, one run."""
        self.cell(name, "n = 0")
        once = self.cell(name, "n += 1; n", id=f"{self.prefix}-{key}")
        again = self.cell(name, "n += 1; n", id=f"{self.prefix}-{key}")
        assert once["result"] == again["result"]
        assert once["result"]["data"] == {"text/plain": "1"}
        assert self.cell(name, "n; del n")["status"] == "success"
        self.host.json("DELETE", f"/v1/executions/{self.prefix}-{key}", 204)

    @step(name=NAMES)
    def interrupt(self, name: str) -> None:
        body = self.begin_long_cell(name)
        self.host.json("POST", self.session_url(name, "/interrupt"), 200)
        done = self.end_of(body)
        assert done["exit_reason"] == "interrupted", done

    @step(name=NAMES, text=st.text("ab é\n", max_size=3))
    def answer_a_question(self, name: str, text: str) -> None:
        """A session waits for input with its prompt, and the cell gets the answer without a newline
        at the end."""
        self.cell(name, "1")
        prompt = f"{name}? "
        code = f"answer = input({prompt!r}); print(ascii(answer)); del answer"
        request = {"code": code, "allow_input": True, "detach": True}
        body = self.host.json("POST", self.session_url(name, "/execute"), 202, json=request)
        while (shown := self.host.json("GET", self.session_url(name), 200))["prompt"] is None:
            assert self.host.json("GET", f"/v1/executions/{body['id']}", 200)["state"] != "EXITED"
        assert (shown["state"], shown["prompt"]) == ("WAITING_INPUT", prompt), shown
        self.host.json("POST", self.session_url(name, "/input"), 200, json={"text": text})
        done = self.end_of(body)
        answer = text.removesuffix("\n")
        assert (done["status"], done["stdout"]) == ("success", f"{answer!a}\n"), done
        assert self.host.json("GET", self.session_url(name), 200)["prompt"] is None

    @step(name=NAMES)
    def die_within_a_cell(self, name: str) -> None:
        body = self.cell(name, "import os; os.kill(os.getpid(), 9)")
        assert body["exit_reason"] == "worker_died", body
        self.lose(self.sessions[name])
        self.sessions[name].is_dead = True

    @step(name=NAMES)
    def kill_from_outside_within_a_cell(self, name: str) -> None:
        body = self.begin_long_cell(name)
        self.kill_worker(name)
        done = self.end_of(body)
        assert done["exit_reason"] == "worker_died", done
        self.lose(self.sessions[name])
        self.sessions[name].is_dead = True

    @step(name=NAMES)
    def kill_from_outside_between_cells(self, name: str) -> None:
        self.cell(name, "1")
        self.kill_worker(name)
        wait_until(
            lambda: self.host.json("GET", self.session_url(name), 200)["state"] == "DEAD",
            READY_SECONDS,
        )
        self.lose(self.sessions[name])
        self.sessions[name].is_dead = True

    @step(name=NAMES, branch=NAMES)
    def fork(self, name: str, branch: str) -> None:
        if name == branch:
            return
        session = self.sessions.get(name)
        reply = self.host.client.post(
            self.session_url(name, "/fork"), json={"id": f"{self.prefix}-{branch}"}
        )
        if session is None or not session.is_listed:
            assert reply.status_code == 404, reply.text
        elif session.is_dead or (branch in self.sessions and self.sessions[branch].is_listed):
            assert reply.status_code == 409, reply.text
        else:
            assert reply.status_code == 201, reply.text
            [shown] = reply.json()["sessions"]
            generation = 1 + (self.sessions[branch].generation if branch in self.sessions else 0)
            assert shown["generation"] == generation, shown
            journaled_generation = generation
            if not session.has_state:
                former = self.sessions.get(branch)
                journaled_generation = former.journaled_generation if former else 0
            self.sessions[branch] = Session(
                generation,
                dict(session.variables),
                dict(session.environ),
                has_state=session.has_state,
                journaled_generation=journaled_generation,
            )

    @step(name=NAMES)
    def restart(self, name: str) -> None:
        session = self.sessions.get(name)
        is_listed = session is not None and session.is_listed
        self.host.json("POST", self.session_url(name, "/restart"), 200 if is_listed else 404)
        if session is not None and session.is_listed:
            self.lose(session)
            session.generation += 1
            session.is_dead = False

    @step(name=NAMES)
    def delete_session(self, name: str) -> None:
        session = self.sessions.get(name)
        is_listed = session is not None and session.is_listed
        self.host.json("DELETE", self.session_url(name), 204 if is_listed else 404)
        if is_listed:
            del self.sessions[name]

    def daemon_died(self) -> None:
        super().daemon_died()
        for session in self.sessions.values():
            self.lose(session)
            # The journal tells the last generation with state, whose state is lost.
            session.has_untold_loss = session.journaled_generation > 0
            session.is_dead = True
            session.is_listed = False
            session.generation = session.journaled_generation

    def warden_died(self) -> None:
        super().warden_died()
        for session in self.sessions.values():
            if session.is_listed:
                self.lose(session)
                session.is_dead = True

    def clean_up(self) -> None:
        for name, session in self.sessions.items():
            self.read_variables(name=name)
            assert session.is_listed
            self.host.json("DELETE", self.session_url(name), 204)
        super().clean_up()
