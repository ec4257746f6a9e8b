"""Names and shapes of agent projects that were written for E2B. Change the import, and their code runs here.

| module | replaces |
|---|---|
| ``isopod.compat.raro`` | ``intelligence.tools`` of RARO: ``SandboxSession``, ``WorkspaceManager`` |
| ``isopod.compat.squad`` | ``app.services.e2b_service`` of Agent Squad: ``E2BSandboxService`` |
| ``isopod.compat.sentient`` | ``sentient_core.tools.e2b_sandbox_tool``: ``E2BSandboxTool`` |
| ``isopod.compat.roma`` | ``roma_dspy.tools.core``, ``…core.storage`` and ``…config.manager`` of ROMA |

What the originals have only for blocking or only for asynchronous code, these have for both.
"""
