"""pairwright turns what an agent did into a better agent."""
from pairwright.records import EID, Experience, Message
