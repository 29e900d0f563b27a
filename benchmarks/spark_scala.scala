import java.sql.Timestamp

import org.apache.spark.sql.{DataFrame, Encoders}
import org.apache.spark.sql.streaming._

case class Event(user: String, amount: Double, at: Timestamp, page: String)
case class Sums(events: Long, total: Double)
case class Spent(user: String, events: Long, total: Double)

/** Events and total amount per user: the processor of `spark_stateful.py`, as a user of Scala would write it. */
class Spending extends StatefulProcessor[String, Event, Spent] {
  @transient private var sums: ValueState[Sums] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    sums = getHandle.getValueState[Sums]("spending", Encoders.product[Sums], TTLConfig.NONE)

  override def handleInputRows(user: String, rows: Iterator[Event], timerValues: TimerValues): Iterator[Spent] = {
    var Sums(events, total) = if (sums.exists()) sums.get() else Sums(0L, 0.0)
    rows.foreach { row =>
      events += 1
      total += row.amount
    }
    sums.update(Sums(events, total))
    Iterator.single(Spent(user, events, total))
  }
}

object Spending {
  def over(events: DataFrame): DataFrame = {
    import events.sparkSession.implicits._
    events
      .as[Event]
      .groupByKey(_.user)
      .transformWithState(new Spending, TimeMode.None(), OutputMode.Update())
      .toDF()
  }
}
