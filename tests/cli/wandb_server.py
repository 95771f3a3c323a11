"""A stand-in for a W&B server on loopback: as much of it as `wandb sweep`, `agent`, `sync` and an online run ask for.

It proposes the points it is given, one heartbeat after the other, and keeps what arrives.
"""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

ENTITY = "someone"
KEY = "0" * 40
_OPERATION = re.compile(r"(?:query|mutation)\s+(\w+)")
_STREAM = re.compile(r"/files/[^/]+/([^/]+)/([^/]+)/file_stream")


class StandIn:
    """The server, and what it was told."""

    def __init__(self, points: list[dict[str, Any]] | None = None) -> None:
        self.points = list(points or [])
        """What the agent gets, parameter -> value."""
        self.sweeps: list[dict[str, Any]] = []
        """Content of every sweep file."""
        self.history: dict[str, list[dict[str, Any]]] = {}
        """Run -> what was logged."""
        self.summary: dict[str, dict[str, Any]] = {}
        self.config: dict[str, dict[str, Any]] = {}
        self.clients: dict[str, set[str]] = {}
        """Run -> machines and processes that said they are it."""
        self.views: list[dict[str, Any]] = []
        """Saved reports, with their specification as it was sent."""
        self.states: list[dict[str, bool]] = []
        """What the agent said of its runs, heartbeat by heartbeat."""
        self.unknown: list[str] = []
        """Operations that nothing here answers."""
        self._handed_out: list[str] = []
        self._server = _Quiet(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> "StandIn":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def environment(self, home: str) -> dict[str, str]:
        """For W&B's commands and for runs."""
        own = {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY, "HOME": home, "NETRC": f"{home}/netrc"}
        return {
            **own,
            "WANDB_MODE": "online",
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_CONFIG_DIR": f"{home}/wandb-config",
        }

    def answer(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The data of one GraphQL request."""
        answers = {
            "Viewer": self._viewer,
            "GetDefaultEntity": self._viewer,
            "UpsertSweep": self._upsert_sweep,
            "SweepWithRuns": self._sweep,
            "CreateAgent": lambda _: {"createAgent": {"agent": {"id": "agent-1"}}},
            "Heartbeat": self._heartbeat,
            "UpsertBucket": self._upsert_run,
            "CreateRunFiles": self._create_files,
            "ProjectInternalId": lambda _: {"project": {"internalId": "p"}},
            "GetProjects": self._projects,
            "upsertView": self._upsert_view,
        }
        if operation not in answers:
            self.unknown.append(operation)
            return {}
        return answers[operation](variables)

    def streamed(self, run: str, body: dict[str, Any]) -> None:
        """A part of a run's file stream."""
        for name, part in body.get("files", {}).items():
            if name == "wandb-history.jsonl":
                self.history.setdefault(run, []).extend(json.loads(line) for line in part["content"])
            elif name == "wandb-summary.json":
                self.summary.setdefault(run, {}).update(json.loads(part["content"][-1]))

    def _viewer(self, _: dict[str, Any]) -> dict[str, Any]:
        teams = {"edges": [{"node": {"name": ENTITY}}]}
        viewer = {
            "id": "v",
            "username": ENTITY,
            "entity": ENTITY,
            "flags": "{}",
            "teams": teams,
            "email": "",
            "admin": False,
        }
        return {"viewer": viewer, "serverInfo": {"cliVersionInfo": {"max_cli_version": "99.0.0"}, "features": []}}

    def _upsert_sweep(self, variables: dict[str, Any]) -> dict[str, Any]:
        content = yaml.safe_load(variables["config"])
        self.sweeps.append({"project": variables["projectName"], **content})
        sweep = {"name": f"sweep{len(self.sweeps)}", "project": self._project(variables["projectName"])}
        return {"upsertSweep": {"sweep": sweep, "configValidationWarnings": []}}

    def _sweep(self, variables: dict[str, Any]) -> dict[str, Any]:
        content = self.sweeps[int(variables["sweep"].removeprefix("sweep")) - 1]
        sweep = {"id": "s", "name": variables["sweep"], "state": "RUNNING", "config": yaml.safe_dump(content)}
        return {"project": {"sweep": {**sweep, "method": content["method"], "runs": {"edges": []}}}}

    def _heartbeat(self, variables: dict[str, Any]) -> dict[str, Any]:
        """A point when none is being run, and the end when there are no more."""
        running = json.loads(variables["runState"])
        self.states.append(running)
        commands: list[dict[str, Any]] = []
        if not running:
            if len(self._handed_out) == len(self.points):
                commands = [{"type": "exit"}]
            else:
                point = self.points[len(self._handed_out)]
                self._handed_out.append(f"point{len(self._handed_out)}")
                values = {key: {"value": value} for key, value in point.items()}
                program = self.sweeps[-1].get("program", "")
                commands = [{"type": "run", "run_id": self._handed_out[-1], "program": program, "args": values}]
        return {"agentHeartbeat": {"agent": {"id": "agent-1"}, "commands": json.dumps(commands)}}

    def _upsert_run(self, variables: dict[str, Any]) -> dict[str, Any]:
        name = variables["name"]
        if variables.get("config"):
            self.config.setdefault(name, {}).update(json.loads(variables["config"]))
        if variables.get("host"):
            self.clients.setdefault(name, set()).add(variables["host"])
        bucket = {
            **{"id": name, "name": name, "displayName": name, "sweepName": variables.get("sweep")},
            **{"historyLineCount": 0, "eventsLineCount": 0, "logLineCount": 0, "config": "{}", "summaryMetrics": "{}"},
            "project": self._project(variables.get("project") or "dtk"),
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}

    def _create_files(self, variables: dict[str, Any]) -> dict[str, Any]:
        files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in variables["files"]]
        return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}

    def _projects(self, variables: dict[str, Any]) -> dict[str, Any]:
        about = {
            "id": "p",
            "internalId": "p",
            "entityName": ENTITY,
            "createdAt": "2026-01-01T00:00:00",
            "isBenchmark": False,
            "user": None,
        }
        names = sorted({view["projectName"] for view in self.views} | {"dtk", "mine"})
        edges = [{"node": {**about, "name": name}, "cursor": name} for name in names]
        page = {"edges": edges, "pageInfo": {"endCursor": None, "hasNextPage": False}, "totalCount": len(edges)}
        return {"models": page}

    def _upsert_view(self, variables: dict[str, Any]) -> dict[str, Any]:
        self.views.append({**variables, "spec": json.loads(variables["spec"])})
        names = {
            "name": variables["name"],
            "displayName": variables["displayName"],
            "description": variables["description"],
        }
        project = {"id": "p", "name": variables["projectName"], "entityName": ENTITY}
        view = {"id": "Vmlldzox", "type": "runs", **names, "project": project, "spec": variables["spec"]}
        return {"upsertView": {"view": {**view, "updatedAt": "2026-01-01T00:00:00"}, "inserted": True}}

    def _project(self, name: str) -> dict[str, Any]:
        return {"id": "p", "name": name, "entity": {"id": "e", "name": ENTITY}}


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that end without closing their connection are no news."""


def _handler(stand_in: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _reply(self, value: Any) -> None:
            data = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self._reply({})

        def do_PUT(self) -> None:
            self._body()
            self._reply({})

        def do_POST(self) -> None:
            body = self._body()
            stream = _STREAM.match(self.path)
            if self.path == "/graphql":
                output = json.loads(body)
                name = _OPERATION.search(output["query"])
                operation = name.group(1) if name else output["query"][:60]
                self._reply({"data": stand_in.answer(operation, output.get("variables") or {})})
            elif stream:
                stand_in.streamed(stream.group(2), json.loads(body))
                self._reply({"exitcode": None, "limits": {}})
            else:
                self._reply({})

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    return Handler
