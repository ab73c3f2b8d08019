"""SQLAlchemy, 1.4 and 2."""
import os
import uuid

from sqlalchemy import JSON, Column, Integer, Text, create_engine
from sqlalchemy.dialects.postgresql import UUID
from sqlalchemy.orm import Session, declarative_base

Base = declarative_base()


class Order(Base):
    __tablename__ = "orders"
    id = Column(Integer, primary_key=True)
    customer = Column(Text)


class Outbox(Base):
    """The key is message_id, generated here: id would need INSERT … RETURNING, and so SELECT (id)."""

    __tablename__ = "outbox"
    message_id = Column(UUID(as_uuid=True), primary_key=True, default=uuid.uuid4)
    routing_key = Column(Text)
    payload = Column(JSON(none_as_null=True))


def place_order(session, order_id):
    session.add(Order(id=order_id, customer="acme"))
    session.add(Outbox(routing_key="orders", payload={"order_id": order_id, "customer": "acme"}))


engine = create_engine(os.environ["DATABASE_URL"].replace("postgres://", "postgresql+psycopg2://", 1), future=True)
with Session(engine) as session:
    with session.begin():
        place_order(session, 42)

    place_order(session, 43)
    session.flush()
    session.rollback()  # no order is stored and no message is sent
