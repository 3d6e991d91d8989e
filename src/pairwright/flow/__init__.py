"""The whole flow from one configuration: rounds of stages, each done once, and a final evaluation."""

from pairwright.flow.run_flow import Flow, GateClosed
from pairwright.flow.stages import View

__all__ = ["Flow", "GateClosed", "View"]
